"""The transaction coordinator's state machine: producers by their transactional ids."""
