"""WHICH variables does an application keep? `StateManager`, its configuration and subscriptions."""
