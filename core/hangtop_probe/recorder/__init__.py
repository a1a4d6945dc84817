"""Flight recorders and NCCL's RAS: every way to read them."""
