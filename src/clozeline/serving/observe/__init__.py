"""What is told of requests to those who run the server: counts, spans, and what shows drift. Knows no other room."""
