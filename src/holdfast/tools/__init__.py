"""The tools by name, and the guards of each one behind *admit* and *settle*."""
