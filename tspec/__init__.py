"""tspec: lossless speculative decoding, with the verify pass built like a compiler would."""
