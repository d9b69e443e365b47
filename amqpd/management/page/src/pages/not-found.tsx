import { PageTitle } from "../components/elements";

export default function NotFound() {
  return (
    <>
      <PageTitle>No such page</PageTitle>
      <p>
        Nothing stands at this address. <a href="#/">To the overview</a>
      </p>
    </>
  );
}
