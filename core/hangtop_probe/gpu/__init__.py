"""GPUs and network ports of the node."""
