"""What keepstate costs beside the raw driver, as ratios from one interleaved run."""
