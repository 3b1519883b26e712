"""Contracts and installations that the tests of several folders of contrib share."""
