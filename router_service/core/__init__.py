"""Pure decisions: no network, no environment, no clock that is not given."""
