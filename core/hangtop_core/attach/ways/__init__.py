"""Ways to a node: local, ssh, pdsh, a command; which nodes, and why a login failed."""
