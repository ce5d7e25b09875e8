"""The seed model and what it is asked: loading, fingerprint, embeddings, FFN inputs, tasks."""
