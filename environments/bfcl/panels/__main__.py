"""The former name of ``environments.bfcl.templated.evaluation_sets``, which works for one release."""

import sys

from environments.bfcl.templated.evaluation_sets import main

if __name__ == "__main__":
    print(
        "warning: environments.bfcl.panels is called environments.bfcl.templated.evaluation_sets now, the old name "
        "works for one release",
        file=sys.stderr,
    )
    main()
