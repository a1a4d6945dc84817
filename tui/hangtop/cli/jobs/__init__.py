"""What commands share: a session, the job that is meant, a capture in its place."""
