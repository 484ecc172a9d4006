"""The report of load tests: figures and tables of one result, or of several beside each other."""
