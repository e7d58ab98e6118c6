"""Co-training of drafter and head on Lightning."""
