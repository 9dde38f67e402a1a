"""The cluster's small tree of versioned nodes, behind one contract with several stores."""
