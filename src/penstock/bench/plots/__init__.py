"""Pictures of benchmarks: figures as data, drawn by Vega-Lite in a page or into files."""
