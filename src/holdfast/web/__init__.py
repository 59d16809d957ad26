"""The page of `holdfast ui` and the HTTP API behind it; needs the extra `server`, and is imported where it is used."""
