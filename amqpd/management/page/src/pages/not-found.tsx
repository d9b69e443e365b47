import { Title } from "../components/elements";

export default function NotFound() {
  return (
    <>
      <Title>No such page</Title>
      <p>
        Nothing stands at this address. <a href="#/">To the overview</a>
      </p>
    </>
  );
}
