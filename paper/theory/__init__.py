"""The paper's propositions and bounds, each a small function that names its label."""
