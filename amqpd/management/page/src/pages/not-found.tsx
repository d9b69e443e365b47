import { PageTitle } from "../components/elements";

export default function NotFound() {
  return (
    <>
      <PageTitle>Page not found</PageTitle>
      <p>
        There is no page at this address. <a href="#/">Overview</a>
      </p>
    </>
  );
}
