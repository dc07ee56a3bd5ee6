"""Play episodes on other machines: any environment behind one thin HTTP server, and the client of many of them."""
