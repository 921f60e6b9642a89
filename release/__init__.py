"""What a release is made of: the chart, the version in every place that says it, a bill of materials."""
