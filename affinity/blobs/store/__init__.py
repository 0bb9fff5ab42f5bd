"""What the payloads keep in the database: the collection of blobs that no row names."""
