"""The report's browser shows the page of a sweep as well."""

from tests.report.conftest import browser as browser
