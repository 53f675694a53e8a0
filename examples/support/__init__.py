"""Code that several examples share: command lines, losses, the start of several processes."""
