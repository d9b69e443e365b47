// The modules that almost every page imports, built into one file: `build.mjs` adds this import to each page, so that the
// browser fetches one file instead of a dozen. A module that only some pages need is not listed.
import "@preact/signals";
import "preact";
import "preact/hooks";
import "preact/jsx-runtime";
import "./api/client";
import "./components/chart";
import "./components/dialog";
import "./components/elements";
import "./components/form";
import "./components/format";
import "./components/notices";
import "./components/paged-list";
import "./components/samples";
import "./components/states";
import "./components/table";
import "./components/vhost-select";
import "./shell/poll";
import "./shell/preferences";
import "./shell/router";
import "./shell/session";
