"""Text to pieces of a WordPiece vocabulary, and the training of one."""
