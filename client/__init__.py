"""Talk to a running server: a library, a command line, a benchmark."""
