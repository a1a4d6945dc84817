"""Output of commands: width and colours, masked secrets, standard streams."""
