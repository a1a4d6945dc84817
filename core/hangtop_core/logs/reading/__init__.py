"""Log files: found, read and followed, and which ranks print to them."""
