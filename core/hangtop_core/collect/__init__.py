"""What nodes are asked and how often: requests, rounds, sampling."""
