// What nearly every page is made of, as one module: `build.mjs` has each page import it, so that the browser fetches one file
// instead of a dozen. What only some pages need is not listed here.
import "@preact/signals";
import "preact";
import "preact/hooks";
import "preact/jsx-runtime";
import "./api/client";
import "./components/chart";
import "./components/dialog";
import "./components/form";
import "./components/states";
import "./components/samples";
import "./components/icon";
import "./components/paged-list";
import "./components/notices";
import "./components/format";
import "./components/state";
import "./components/tabs";
import "./components/elements";
import "./components/vhost-select";
import "./shell/poll";
import "./shell/router";
import "./shell/session";
import "./shell/theme";
import "./shell/preferences";
