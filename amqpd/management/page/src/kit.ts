// What nearly every page is made of, as one module: `build.mjs` has each page import it, so that the browser fetches one file
// instead of a dozen. What only some pages need is not listed here.
import "@preact/signals";
import "preact";
import "preact/hooks";
import "preact/jsx-runtime";
import "./api/client";
import "./parts/chart";
import "./parts/dialog";
import "./parts/form";
import "./parts/held";
import "./parts/history";
import "./parts/icon";
import "./parts/list";
import "./parts/notices";
import "./parts/numbers";
import "./parts/state";
import "./parts/tabs";
import "./parts/text";
import "./parts/vhost-choice";
import "./shell/poll";
import "./shell/router";
import "./shell/session";
import "./shell/theme";
import "./shell/vhost";
