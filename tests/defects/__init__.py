"""The reference's defects, each shown to be absent here by a test that carries its number."""
