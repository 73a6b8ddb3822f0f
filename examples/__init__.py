"""Programs that show what asyncstream is for; each is run by a test."""
