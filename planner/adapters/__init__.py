"""Plans to and from the configuration of training frameworks."""
