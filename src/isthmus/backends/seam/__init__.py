"""The interface between the API and backends, what backends declare, and what they share."""
