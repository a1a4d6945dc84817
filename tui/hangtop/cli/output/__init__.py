"""What commands print: width and colours, masked secrets, standard streams."""
