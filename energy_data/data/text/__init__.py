"""Text as tokens: documents, conversations, and how many tokens they have."""
