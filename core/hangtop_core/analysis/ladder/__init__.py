"""What hangtop can do on a node, rung by rung, and what has to change where it cannot."""
