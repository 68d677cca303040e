"""What the API asks of a backend, what backends say of themselves, and what they share."""
