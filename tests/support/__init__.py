"""What tests of several rooms share: clients, servers, data and measurements."""
