"""`specdec bench`: what speculation gains on a running server, and where the time goes."""
