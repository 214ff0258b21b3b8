"""Plans as one self-contained HTML page: `planner.report.html.page` puts it together."""
