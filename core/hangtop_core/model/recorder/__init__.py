"""Nouns about flight recorders and NCCL's RAS: what one rank's recorder holds."""
