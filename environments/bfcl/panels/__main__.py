"""The former name of ``environments.bfcl.templated.evaluation_sets``, which works for one release."""

from environments.bfcl.templated.evaluation_sets import main
from environments.terminal import say

if __name__ == "__main__":
    say(
        "warning: environments.bfcl.panels is called environments.bfcl.templated.evaluation_sets now, the old name "
        "works for one release",
    )
    main()
