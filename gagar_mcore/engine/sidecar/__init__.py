"""What stands before a server and stores the experts that it tells of, so that they do not travel through the controller."""
