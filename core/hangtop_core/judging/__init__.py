"""What is concluded from snapshots over time: hangs, what they were caused by, their ends."""
