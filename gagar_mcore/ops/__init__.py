"""The advantage step: from a sequence's advantage and its tokens' log-probabilities to the policy loss."""
