"""What an owner does: charter, overlap check, training, routing vectors, contribution."""
