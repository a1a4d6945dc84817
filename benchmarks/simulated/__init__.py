"""A fleet of simulated nodes that speak the real wire over real pipes to the real head."""
