"""What known lines of logs mean."""
